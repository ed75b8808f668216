-- Saves a checkpoint, ends the driver and frees all pods.
obj.spec.scheduling = obj.spec.scheduling or {}
obj.spec.scheduling.suspend = true
return obj
