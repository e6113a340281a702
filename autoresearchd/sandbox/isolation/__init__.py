"""The tiers of isolation: bubblewrap, namespaces with Landlock, Landlock with a filter of system calls."""
