"""The code that runs inside server images: aiohttp.web applications on shared base classes.

Nothing is imported here, so that a process pays only for the modules it uses.
"""
