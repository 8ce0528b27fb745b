"""Serves the agent where its configuration says."""

import uvicorn
from app import SETTINGS, app

uvicorn.run(app, host=SETTINGS["host"], port=SETTINGS["port"])
