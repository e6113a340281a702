"""Whether what was learned is used: fresh proposals at held-out states, judged and compared."""
