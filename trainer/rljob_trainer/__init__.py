"""The process that trains: a driver that loops over Megatron-core learners and SGLang engines placed by Ray."""
