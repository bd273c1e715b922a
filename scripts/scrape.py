#!/usr/bin/env python3
"""Scrapes the example metrics_http and reads the text with Prometheus' own reader.

    cargo run --example metrics_http --features metrics -- 127.0.0.1:9400 &
    pip install prometheus_client
    scripts/scrape.py http://127.0.0.1:9400/metrics

Prints every family with its number of samples; a text that is not OpenMetrics is an error.
"""

import sys
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families

with urllib.request.urlopen(sys.argv[1]) as answer:
    text = answer.read().decode()
for family in text_string_to_metric_families(text):
    print(f"{family.type:8} {family.name} {len(family.samples)}")
