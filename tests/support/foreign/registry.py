"""A registry and an agent of another make, with nothing but the standard library and PyYAML.

Prints the registry's port, and serves until its standard input ends. The registry knows neither ``/ready`` nor
``/server_instances`` and refuses methods it does not know; until the file named by its first argument is there, it has
no config. The agent listens on every address, as its config says, and answers ``/run`` and nothing below a prefix.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

STARTED = Path(sys.argv[1])


class Handler(BaseHTTPRequestHandler):
    def send(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: standard error is for what goes wrong."""


class Agent(Handler):
    def do_POST(self) -> None:
        row = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/run":
            self.send(200, {**row, "reward": len(row["responses_create_params"]["input"]) / 100})
        elif self.path == "/aggregate_metrics":
            self.send(200, {"key_metrics": {"count": len(row["verify_responses"])}})
        else:
            self.send(404, {"detail": "Not Found"})


class Registry(Handler):
    def do_GET(self) -> None:
        if self.path == "/":
            self.send(200, {"status": "ok"})
        elif self.path == "/global_config_dict_yaml" and STARTED.exists():
            self.send(200, yaml.safe_dump(CONFIG))
        elif self.path == "/global_config_dict_yaml":
            self.send(500, {"detail": "not yet"})
        else:
            self.send(404, {"detail": "Not Found"})


agent = ThreadingHTTPServer(("0.0.0.0", 0), Agent)
registry = ThreadingHTTPServer(("127.0.0.1", 0), Registry)

CONFIG = {
    "head_server": {"host": "0.0.0.0", "port": registry.server_port},
    "use_absolute_ip": True,
    "default_host": "0.0.0.0",
    "policy_api_key": "****",
    "disallowed_ports": [1, 2],
    "verifier": {"resources_servers": {"v": {"entrypoint": "app.py", "host": "0.0.0.0", "port": None}}},
    "policy_model": {"responses_api_models": {"m": {"entrypoint": "app.py", "host": None, "port": None}}},
    "agent": {
        "responses_api_agents": {
            "elsewhere": {
                "entrypoint": "app.py",
                "host": "0.0.0.0",
                "port": agent.server_port,
                "num_workers": None,
                "resources_server": {"type": "resources_servers", "name": "verifier"},
            }
        }
    },
}

for server in (agent, registry):
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
print(registry.server_port, flush=True)
sys.stdin.read()
