"""Random worlds by the thousand: every workload, every simulated fault, options from a seed."""
