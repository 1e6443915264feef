"""All that the house knows about reading and running jaxprs."""
