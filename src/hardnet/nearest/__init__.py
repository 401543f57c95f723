"""The nearest point of C(x): one operation, its policies for samples without an answer, one derivative."""
