-- Saves a checkpoint, ends the driver and frees all pods.
obj.spec.suspend = true
return obj
