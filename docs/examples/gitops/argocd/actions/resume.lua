-- Starts the job again, from its newest checkpoint.
obj.spec.scheduling = obj.spec.scheduling or {}
obj.spec.scheduling.suspend = false
return obj
