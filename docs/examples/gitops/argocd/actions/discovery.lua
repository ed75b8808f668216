-- What Argo CD offers to do with an RLJob.
local suspended = obj.spec.suspend == true
local ended = obj.status ~= nil and obj.status.completionTime ~= nil
return {
  suspend = { disabled = suspended or ended },
  resume = { disabled = ended or not suspended },
}
