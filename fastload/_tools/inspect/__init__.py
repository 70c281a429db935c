"""`fastload inspect`: figures of a dataset, one sample, a contact sheet, and shuffle quality."""
