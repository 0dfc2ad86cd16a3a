-- Common code of the parts below: how a state is written, and which functions a part defines.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local sub, find, match, format, byte = string.sub, string.find, string.match, string.format, string.byte

-- How format writes whole numbers. '%d' takes a quarter of the time of '%.0f', but needs a C long of 64 bits.
local long = format('%d', 4503599627370496) == '4503599627370496'
local WHOLE, WHOLE_7, WHOLE_18 = long and '%d' or '%.0f', long and '%07d' or '%07.0f', long and '%018d' or '%018.0f'

local CALLER_SLACK = 60000 -- ms: callers' clocks differ, so their counters stay longer than one clock requires
local SLACK_WINDOWS = 2000 -- the most windows in CALLER_SLACK: some states keep only the last digits of a window's number

-- A state may lie this far in the future, in microseconds. A read moves one that lies further to the present, and sets
-- moved: it has to be written, even if the take is denied. slack in package backend explains it.
local SLACK = 1000000
local moved

-- Buckets define it, because their state depends on the limit, which differs from take to take:
-- nearer(a, b, c, limit, p1, p2, p3) -> a, b, c, moved
local nearer

-- Set by a read when the caller has to call again: the calendar window given does not hold now (0), or the longest log
-- has so many entries.
local again

-- The largest count of a fixed window under a limit. Below MANY, states have the form that all versions read.
local MANY, MAX_COUNT = 4294967296, 9007199254740992 -- 2^32, 2^53
local function most_of(limit) return limit < MANY and 1099511627775 or MAX_COUNT end -- 2^40 - 1

-- The text of a number, for a command: Redis takes long to write one.
local function text_of(n) return n == 1 and '1' or format(WHOLE, n) end

-- window is the length of numbered windows, nil if a state has none.
local function save(key, state, expires, window)
  if caller_clock then
    local slack = min(CALLER_SLACK, (window or math.huge) / 1000 * SLACK_WINDOWS)
    redis.call('SET', key, state, 'PX', format(WHOLE, ceil((expires - now) / 1000 + slack)))
  else
    redis.call('SET', key, state, 'PXAT', format(WHOLE, ceil(expires / 1000)))
  end
end

-- Whether a key never expires. All states that these scripts write expire. So a state that lies in the future was written before a clock
-- went back if its key expires, and by another program if it does not.
local function forever(key) return redis.call('PTTL', key) < 0 end

-- Whether an error means that memory is full. Redis checks the memory at the first write of a script only. So after this error nothing was
-- written, and the script may answer without its writes.
local function full(err) return find(type(err) == 'table' and err.err or err, 'OOM', 1, true) end

-- Applies the same take several times. Returns the state after the last one, whether the state differs, and whether any take was
-- allowed. If all takes fit, one take with the sum of their hits gives the same result, so that is tried first.
local function repeated(try, times, count_denied, a, b, c, hits, limit, p1, p2, p3)
  if times > 1 and hits > 0 and hits * times <= limit and hits * times < MAX_COUNT then
    local allowed, a2, b2, c2 = try(a, b, c, hits * times, limit, p1, p2, p3)
    if allowed then return a2, b2, c2, true, true end
  end
  local changed, any = false, false
  for _ = 1, times do
    local allowed, a2, b2, c2 = try(a, b, c, hits, limit, p1, p2, p3)
    if allowed == nil or (not allowed and count_denied == 0) then break end -- the state did not change, so the next take fails too
    a, b, c, changed, any = a2, b2, c2, true, any or allowed
  end
  return a, b, c, changed, any
end

-- Every algorithm's part below defines three functions.
--
--   read(key, value, p1, p2, p3) -> a, b, c, seen     the state that value holds, and its form in the reply
--   try(a, b, c, hits, limit, p1, p2, p3, judge) -> allowed, a, b, c     the same and the state with the hits in it,
--       whether they are allowed or not; with judge only the first counts. Hits are not 0 unless with judge. nil is for a
--       refund of more hits than a window holds: it passes and changes nothing.
--   write(key, value, a, b, c, p1, p2, p3)     writes a state; value is the old content of the key, false if it was empty
