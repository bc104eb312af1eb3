"""What libraries do: one module of rows per library; the functions of rows are in `transfers`."""
