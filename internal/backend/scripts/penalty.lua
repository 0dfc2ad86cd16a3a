-- Penalties: a customer that exceeded a limit is denied until the penalty ends. punish in many.lua starts a penalty.
--
-- p1  how long a penalty lasts
-- a   the end of the penalty, 0 if none is active
--
-- The state is the time at which it ends, in microseconds.

-- A penalty that ends too late is from before the clock was set back, or from before the rule was changed.
local function nearer(a, b, c, limit, p1)
  if a > now + p1 + SLACK then return now + p1, b, c, true end
  return a, b, c, false
end

local function read(key, value, p1)
  local ends = value and #value <= 16 and match(value, '^%d+$') and tonumber(value)
  if not ends or ends <= now or ends > MAX_COUNT or forever(key) then return 0, 0, 0, '' end
  local seen = pack('<I8', ends)
  local _
  ends, _, _, moved = nearer(ends, 0, 0, 0, p1)
  return ends, 0, 0, seen
end

local function try(a) return a == 0, a, 0, 0 end

local function write(key, value, a)
  save(key, format(WHOLE, a), a)
end
