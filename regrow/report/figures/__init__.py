"""The figures of a report, as Vega-Lite specifications that a page draws and files are made of."""
