-- Starts the job again, from its newest checkpoint.
obj.spec.suspend = false
return obj
