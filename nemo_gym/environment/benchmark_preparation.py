"""stub"""
from __future__ import annotations
from typing import Any
from pathlib import Path
from nemo_gym.environment.benchmarks import gym_relative_path, find_datasets, get_benchmark
from nemo_gym.environment.collated_files import plain_config

def prepare_for_plan(config: Any) -> dict[str, Any]:
    import importlib.util
    plain = plain_config(config)
    b = get_benchmark(plain)
    if b.script_file:
        spec = importlib.util.spec_from_file_location("prep", b.script_file)
        m = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(m)
        p = b.data_file.with_name("." + b.data_file.name + ".partial")
        p.parent.mkdir(parents=True, exist_ok=True)
        m.prepare(output_path=p)
        p.replace(b.data_file)
    return plain
