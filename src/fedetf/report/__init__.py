"""What people see: progress, tables, pictures."""
