def document(limits): return {}
