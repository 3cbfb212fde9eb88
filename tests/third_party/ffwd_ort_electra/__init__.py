"""ELECTRA for ffwd_ort."""
