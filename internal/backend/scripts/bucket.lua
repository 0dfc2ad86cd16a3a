-- Token buckets that are refilled continuously, and leaky buckets.
--
-- p1, p2  the window's length, and the requests in it: one hit lasts p1/p2 microseconds
-- p3      the denominator of that fraction in its lowest terms
-- limit   the bucket's capacity
-- a, b    the moment at which the bucket will be full of tokens, or empty: a + b/c microseconds
-- c       the requests of the limit for which this moment was computed
--
-- The state is a and c as in pair.lua, or "a:c:b" if there is a fraction.

-- A bucket is kept as the moment at which it will be at rest again: full of tokens, or empty if it leaks. Time moves toward that moment by
-- itself, so an unused bucket needs no writes, and a hit only moves the moment further ahead. Its distance from now shows the amount in
-- use, and it may lie at most a whole bucket (limit hits) ahead. The fraction b/c keeps rates such as 7 per second exact: rounding
-- each hit to a microsecond would add up.

local MAX_TIME = 4503599627370496 -- 2^52

-- Returns the moment n hits after a moment. p2/p3 is a whole number, and so is p1 % p2 divided by it.
local function plus(a, b, n, p1, p2, p3)
  local step, unit = floor(p1 / p2), p2 / p3
  local num = n * ((p1 - step * p2) / unit)
  local whole = floor(num / p3)
  a, b = a + n * step + whole, b + (num - whole * p3) * unit
  if b >= p2 then return a + 1, b - p2 end
  return a, b
end

-- x * y - z * w, for whole numbers below 2^52 of which the products differ by less than 2^53: the parts of the products that need more
-- bits than a number has cancel out.
local function difference(x, y, z, w)
  local x0, y0, z0, w0 = x % 67108864, y % 67108864, z % 67108864, w % 67108864
  local x1, y1, z1, w1 = (x - x0) / 67108864, (y - y0) / 67108864, (z - z0) / 67108864, (w - w0) / 67108864
  local middle = (x1 * y0 - z1 * w0) + (x0 * y1 - z0 * w1)
  return ((x1 * y1 - z1 * w1) * 67108864 + middle) * 67108864 + (x0 * y0 - z0 * w0)
end

-- Returns the moment of a state of another limit under this one: as many hits are in use, as a fraction without rounding. If they are more
-- than two buckets, or nonsense, the bucket was just used up.
local function converted(a, b, c, limit, p1, p2, p3)
  local hits = a - now < MAX_TIME and floor((a - now) / p1 * c) or math.huge -- not quite
  if hits <= 2 * limit + 4 then
    local rest = difference(a - now, c, hits, p1) + b -- of a hit, in 1/p1
    local more = floor(rest / p1)
    hits, rest = hits + more, rest - more * p1
    if hits <= 2 * limit then
      a, b = plus(now, rest % p2, hits, p1, p2, p3)
      return a + floor(rest / p2), b
    end
  end
  return plus(now, 0, limit, p1, p2, p3)
end

-- Returns the state under a limit, and whether it has changed: it was computed for another limit, or it lies too far ahead. Too far is
-- two whole buckets, or a whole bucket and SLACK if SLACK is longer. Such a state was written before a clock went
-- back, or before the limit was lowered; it becomes the state of a bucket that was just used up.
local function nearer(a, b, c, limit, p1, p2, p3)
  if a < now then return a, 0, p2, false end
  local changed = c ~= p2
  if changed then
    a, b = converted(a, b, c, limit, p1, p2, p3)
  end
  if a - now <= max(SLACK, 2 * limit * floor(p1 / p2)) then return a, b, p2, changed end
  local full_a, full_b = plus(now, 0, limit, p1, p2, p3)
  if a - full_a > max(SLACK, full_a - now) then return full_a, full_b, p2, true end
  return a, b, p2, changed
end

local function parsed(value)
  local a, c = read_pair(value)
  if a then return a, 0, c end
  local b
  a, c, b = match(value, '^(%d+):(%d+):(%d+)$')
  return tonumber(a), tonumber(b), tonumber(c)
end

local function read(key, value, p1, p2, p3, limit)
  if not value or #value > 50 then return now, 0, p2, '' end
  local a, b, c = parsed(value)
  if not a or a >= 9007199254740992 or b >= c or c >= MAX_TIME then return now, 0, p2, '' end
  -- It lies further ahead than a whole bucket: the limit was changed, the clock went back, or another program wrote it.
  if (c ~= p2 or a > now + limit * (p1 / p2 + 1)) and forever(key) then return now, 0, p2, '' end
  a, b, c, moved = nearer(a, b, c, limit, p1, p2, p3)
  return a, b, c, value
end

-- Returns the moment after hits that are added whether or not they fit, or are given back. It is at most the one of a full bucket, unless
-- more is in use already, and at least now.
local function shifted(a, b, hits, limit, p1, p2, p3)
  if a < now then a, b = now, 0 end
  if hits <= -2 * limit then return now, 0 end
  local next_a, next_b = plus(a, b, min(hits, limit), p1, p2, p3)
  if next_a < now then return now, 0 end
  if hits > 0 then
    local full_a, full_b = plus(now, 0, limit, p1, p2, p3)
    if next_a > full_a or (next_a == full_a and next_b > full_b) then
      if a < full_a or (a == full_a and b < full_b) then return full_a, full_b end
      return a, b
    end
  end
  return next_a, next_b
end

local function try(a, b, c, hits, limit, p1, p2, p3)
  if hits < 0 then
    a, b = shifted(a, b, hits, limit, p1, p2, p3)
    return true, a, b, c
  end
  if a < now then a, b = now, 0 end
  local full_a, full_b = plus(now, 0, limit, p1, p2, p3)
  if a > full_a or (a == full_a and b > full_b) then a, b = full_a, full_b end
  if hits > limit then return false, a, b, c end
  a, b = plus(a, b, hits, p1, p2, p3)
  return a < full_a or (a == full_a and b <= full_b), a, b, c
end

local function write(key, value, a, b, c, p1)
  if b > 0 then
    save(key, format(WHOLE, a) .. ':' .. format(WHOLE, c) .. ':' .. format(WHOLE, b), a + 1)
  elseif a > now then
    save(key, pair_of(a, c, max(p1, a - now)), a)
  elseif value then
    redis.call('DEL', key)
  end
end

-- For scripts with reservations.
local function adjust(a, b, c, mark, delta, limit, p1, p2, p3)
  a, b = shifted(a, b, delta, limit, p1, p2, p3)
  return a, b, c
end
