"""What `asyncpage bench control-plane` is made of: loads, meters and their report."""
