"""Questions asked of many runs: comparisons, sizes, sweeps, counterfactuals, cache curves."""
