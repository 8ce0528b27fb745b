"""A relay that owns the episode: it passes each task on to the agent that its entry names."""

import os
import signal
import sys
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml

CONFIG = yaml.safe_load(os.environ["NEMO_GYM_CONFIG_DICT"])
SETTINGS = CONFIG[os.environ["NEMO_GYM_CONFIG_PATH"]]["environment_servers"]["relay"]
AGENT = SETTINGS["agent_server"]
(AGENT_SETTINGS,) = CONFIG[AGENT["name"]][AGENT["type"]].values()


class Relay(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        url = f"http://{AGENT_SETTINGS['host']}:{AGENT_SETTINGS['port']}{self.path}"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            reply = answer.read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)


signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
ThreadingHTTPServer((SETTINGS["host"], SETTINGS["port"]), Relay).serve_forever()
