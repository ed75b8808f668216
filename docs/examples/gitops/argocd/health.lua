-- Argo CD's health of an RLJob, by the conditions that kstatus reads too. Argo CD opens no `string` library here.
local status = obj.status or {}
local seen = status.observedGeneration or -1
if seen ~= obj.metadata.generation then
  return { status = "Progressing", message = "no operator has seen generation " .. obj.metadata.generation .. " yet" }
end

local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end
local function is_true(type)
  return conditions[type] ~= nil and conditions[type].status == "True"
end

local ready = conditions.Ready or { reason = "Unknown", message = "the operator has not said anything yet" }
if is_true("Stalled") then
  return { status = "Degraded", message = conditions.Stalled.reason .. ": " .. conditions.Stalled.message }
end
if is_true("Ready") then
  local message = ready.message
  if status.progress ~= nil then
    message = message .. "; step " .. status.progress.step .. " of " .. obj.spec.training.steps
  end
  if is_true("Degraded") then
    message = message .. "; " .. conditions.Degraded.message
  end
  return { status = "Healthy", message = message }
end
if ready.reason == "Suspended" then
  return { status = "Suspended", message = ready.message }
end
return { status = "Progressing", message = ready.message }
