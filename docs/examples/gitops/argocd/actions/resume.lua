-- Goes on from the checkpoint.
obj.spec.scheduling = obj.spec.scheduling or {}
obj.spec.scheduling.suspend = false
return obj
