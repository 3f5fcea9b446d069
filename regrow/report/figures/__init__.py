"""The figures of a report, as Vega-Lite specifications."""
