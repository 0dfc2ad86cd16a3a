-- Token buckets that are refilled continuously, and leaky buckets.
--
-- p1, p2, p3  how long one hit lasts: p1 + p2/p3 microseconds
-- limit       the bucket's capacity
-- a, b        the moment at which the bucket will be full of tokens, or empty: a + b/p3 microseconds
--
-- The state is a, or "a:b" if there is a fraction.

-- A bucket is kept as the moment at which it will be at rest again: full of tokens, or empty if it leaks. Time moves toward that moment by
-- itself, so an unused bucket needs no writes, and a hit only moves the moment further ahead. How far it lies ahead of now says how much
-- is used, and it may lie at most a whole bucket (limit hits) ahead. The fraction b/p3 keeps rates such as 7 per second exact: rounding
-- each hit to a microsecond would add up.

-- Returns the state and false. If the state lies too far ahead, returns the state of a bucket that was just used up, and true. Too far is
-- a whole bucket and as much again, or a whole bucket and SLACK if SLACK is longer. Such a state was written before a clock went
-- back, or before the limit was lowered.
local function nearer(a, b, limit, p1, p2, p3)
  if a - now <= max(SLACK, 2 * limit * p1) then return a, b, false end
  local f = limit * p2
  local full_a = now + limit * p1 + floor(f / p3)
  if (b >= p3 and a + 1 or a) - full_a <= max(SLACK, full_a - now) then return a, b, false end
  return full_a, f % p3, true
end

local function read(key, value, p1, p2, p3, limit)
  if not value or #value > 40 then return now, 0, 0, '' end
  local a, b = value, nil
  if not find(value, '^%d+$') then a, b = match(value, '^(%d+):(%d*)$') end
  a, b = tonumber(a), tonumber(b) or 0
  if not a or a >= 9007199254740992 or b >= 9007199254740992 then return now, 0, 0, '' end
  -- It lies further ahead than a whole bucket: the limit was lowered, the clock went back, or it is not ours.
  if a > now + limit * (p1 + 1) and forever(key) then return now, 0, 0, '' end
  a, b, moved = nearer(a, b, limit, p1, p2, p3)
  return a, b, 0, value
end

local function try(a, b, c, hits, limit, p1, p2, p3)
  if b >= p3 then a, b = a + 1, 0 end -- another rate's fraction
  if a < now then a, b = now, 0 end
  local f = limit * p2
  local full_a, full_b = now + limit * p1 + floor(f / p3), f % p3
  if a > full_a or (a == full_a and b > full_b) then a, b = full_a, full_b end
  if hits > limit then return false, a, b, c end
  hits = max(hits, -limit)
  f = b + hits * p2
  a, b = a + hits * p1 + floor(f / p3), f % p3
  local allowed = a < full_a or (a == full_a and b <= full_b)
  if a < now then a, b = now, 0 end
  return allowed, a, b, c
end

local function write(key, value, a, b)
  if b > 0 then
    save(key, format(WHOLE, a) .. ':' .. format(WHOLE, b), a + 1)
  elseif a > now then
    save(key, format(WHOLE, a), a)
  elseif value then
    redis.call('DEL', key)
  end
end

-- For scripts with reservations.
local function adjust(a, b, c, mark, delta, limit, p1, p2, p3)
  if b >= p3 then a, b = a + 1, 0 end
  if a < now then a, b = now, 0 end
  local f = limit * p2
  local full_a, full_b = now + limit * p1 + floor(f / p3), f % p3
  if a > full_a or (a == full_a and b > full_b) then a, b = full_a, full_b end
  delta = min(max(delta, -limit), limit)
  f = b + delta * p2
  a, b = a + delta * p1 + floor(f / p3), f % p3
  if a < now then return now, 0, c end
  if a > full_a or (a == full_a and b > full_b) then return full_a, full_b, c end
  return a, b, c
end
