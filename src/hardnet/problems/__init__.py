"""Problems: data, constraint, loss and known answer; no method inside."""
