"""Rollouts: rows sent to a running agent, their replies judged, collected and summed up."""
