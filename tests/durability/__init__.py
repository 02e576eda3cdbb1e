"""`make durability-beside`: the conformance kit for durability engines, on ours and on others from wheels in environments of their own."""
