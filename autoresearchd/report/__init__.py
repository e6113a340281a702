"""What people read: charts and exports."""
