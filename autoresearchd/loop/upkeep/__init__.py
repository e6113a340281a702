"""What happens beside the experiments: lock, log, clock, backups, requests of commands."""
