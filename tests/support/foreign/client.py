"""A client of another make: asks a registry where an agent is, and gives that agent one task.

``python client.py REGISTRY_URL AGENT ROW_FILE`` prints the reply's reward.
"""

import json
import sys
import urllib.request
from pathlib import Path

import yaml


def main(registry: str, agent: str, row_file: str) -> None:
    with urllib.request.urlopen(f"{registry}/global_config_dict_yaml", timeout=30) as answer:
        config = yaml.safe_load(json.load(answer))
    (settings,) = config[agent]["responses_api_agents"].values()
    request = urllib.request.Request(
        f"http://{settings['host']}:{settings['port']}/run",
        Path(row_file).read_bytes(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        print(json.load(answer)["reward"])


main(*sys.argv[1:])
