"""What the benchmarks share: processes, peers, clients, scenarios, the report. Standard library only."""
