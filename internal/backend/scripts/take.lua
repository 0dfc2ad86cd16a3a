-- Settles takes of one or many requests in one go, and answers with the states it saw before.
--
-- KEYS     the counters, each once
-- ARGV[1]  packed, little-endian: the time in microseconds (0: this server's clock decides), then the takes. A take is
--          the index of its key (16 bit), its algorithm ('f'), whether refused hits count (0, 1), the vote of its
--          member (0 all, 1 any, 2 none), whether it is the last of its member (1) and its group (2), one byte each;
--          then for a fixed window its length in microseconds (64 bit), the limit (32 bit) and the hits (64 bit).
-- Reply    packed likewise, 64 bit each: the time, and for each key its state as it was, 0 if nothing was used that
--          still counts. One string: it costs less than a list on both sides.
--
-- What is admitted is said by Settle (settle.go) and the algorithms' Go functions; this does the same, take by take.
-- The caller runs them again on the states in the reply to find the outcomes: nothing else is computed here.
--
-- A fixed window is one integer, so that Redis keeps it without an allocation: (window mod 4096) * 2^40 + count, where
-- window is time / length. All numbers stay below 2^53, where Lua's arithmetic is exact. Windows up to 255 ahead are
-- believed: the clock went back, and the newer window stays. Any other distance means that the window is over.

local pack, unpack_from, floor, ceil, min, max = struct.pack, struct.unpack, math.floor, math.ceil, math.min, math.max

local WINDOWS, COUNTS, AHEAD = 4096, 1099511627776, 256 -- 2^12, 2^40
local MAX_COUNT = COUNTS - 1
local CALLER_SLACK = 60000 -- ms: callers' clocks differ, so their counters stay longer than their own clock says

local packed = ARGV[1]
local now, at = unpack_from('<I8', packed)
local caller_clock = now > 0
if not caller_clock then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- What a key holds: the window it counts in, its count, and the integer itself. Whatever is not a state of ours counts
-- as nothing; so does a window ahead that would never expire, for we never write one.
local function read_window(key, value, w)
  local n = tonumber(value)
  if not n or n < 0 or n >= WINDOWS * COUNTS or n % 1 ~= 0 then return w, 0, 0 end
  local count = n % COUNTS
  if count == 0 then return w, 0, 0 end
  local ahead = ((n - count) / COUNTS - w) % WINDOWS
  if ahead == 0 then return w, count, n end
  if ahead >= AHEAD or redis.call('PTTL', key) < 0 then return w, 0, 0 end
  return w + ahead, count, n
end

-- Writes the least that takes a counter from (w0, c0) to (w, c). value is what the key held, false if nothing.
local function write_window(key, value, length, w0, c0, w, c)
  if c == 0 then
    if value then redis.call('DEL', key) end
    return
  end
  if c0 > 0 and w == w0 then
    if c == c0 then return end
    -- It fails on a number that is not written as an integer: then the state is written anew. Any other reason to fail
    -- makes SET fail too.
    if type(redis.pcall('INCRBY', key, c - c0)) == 'number' then return end
  end
  local state = string.format('%.0f', w % WINDOWS * COUNTS + c)
  local window_end = (w + 1) * length
  if caller_clock then
    redis.call('SET', key, state, 'PX', ceil((window_end - now) / 1000) + CALLER_SLACK)
  else
    redis.call('SET', key, state, 'PXAT', ceil(window_end / 1000))
  end
end

local TAKE = '<I2BBBBI8I4i8'

-- One take alone, the most common call, needs none of the bookkeeping below.
if #packed == 34 then
  local _, _, counts_denied, _, _, length, limit, hits = unpack_from(TAKE, packed, at)
  local key, w = KEYS[1], floor(now / length)
  local value = redis.pcall('GET', key)
  if type(value) == 'table' then
    if not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
    value = false
  end
  local w0, c0, n = read_window(key, value, w)
  if hits ~= 0 then
    local c = min(max(c0 + hits, 0), MAX_COUNT)
    if c <= limit or hits < 0 or counts_denied == 1 then write_window(key, value, length, w0, c0, w0, c) end
  end
  return pack('<I8I8', now, n)
end

-- Many takes: every counter is read once, changed in these tables, and written once.
local reply = { pack('<I8', now) }
local values = redis.call('MGET', unpack(KEYS, 1, min(#KEYS, 1000)))
for first = 1001, #KEYS, 1000 do -- a Lua call has room for some thousand arguments
  for i, v in ipairs(redis.call('MGET', unpack(KEYS, first, min(first + 999, #KEYS)))) do
    values[first + i - 1] = v
  end
end
local lengths, current, window0, count0, window, count, touched = {}, {}, {}, {}, {}, {}, {}

local function add(k, limit, hits, counts_denied)
  if hits == 0 then return end
  local c = min(max(count[k] + hits, 0), MAX_COUNT)
  if c > limit and hits > 0 and counts_denied == 0 then return end
  if count[k] == 0 then window[k] = current[k] end
  count[k], touched[k] = c, true
end

-- The takes of the group that is being read, and what its members said so far.
local size, keys, limits, hits_of, denied_count, allowed = 0
local member_passed, refused, any_voted, any_passed = true, false, false, false

while at <= #packed do
  local k, _, counts_denied, vote, last, length, limit, hits
  k, _, counts_denied, vote, last, length, limit, hits, at = unpack_from(TAKE, packed, at)
  if not lengths[k] then
    local w = floor(now / length)
    local w0, c0, n = read_window(KEYS[k], values[k], w)
    lengths[k], current[k], window0[k], count0[k], window[k], count[k] = length, w, w0, c0, w0, c0
    reply[k + 1] = pack('<I8', n)
  end
  if last == 2 and size == 0 then
    add(k, limit, hits, counts_denied)
  else
    if not keys then keys, limits, hits_of, denied_count, allowed = {}, {}, {}, {}, {} end
    size = size + 1
    keys[size], limits[size], hits_of[size], denied_count[size] = k, limit, hits, counts_denied
    allowed[size] = hits < 0 or count[k] + hits <= limit
    member_passed = member_passed and allowed[size]
    if last > 0 then
      if vote == 0 then
        refused = refused or not member_passed
      elseif vote == 1 then
        any_voted, any_passed = true, any_passed or member_passed
      end
      member_passed = true
    end
    if last == 2 then
      refused = refused or (any_voted and not any_passed)
      for i = 1, size do
        if not refused or hits_of[i] < 0 or (denied_count[i] == 1 and not allowed[i]) then
          add(keys[i], limits[i], hits_of[i], denied_count[i])
        end
      end
      size, refused, any_voted, any_passed = 0, false, false, false
    end
  end
end

for k = 1, #KEYS do
  if touched[k] then
    write_window(KEYS[k], values[k], lengths[k], window0[k], count0[k], window[k], count[k])
  end
end
return table.concat(reply)
