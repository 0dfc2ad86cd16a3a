-- Many takes, of one or many requests: every counter is read once, changed in these tables, and written once.
--
-- ARGV[1]  after the time, for each take: the index of its key (16 bit), the letter of its algorithm's part, whether
--          refused hits count (0, 1), the vote of its member (0 all, 1 any, 2 none), whether it is the last take of
--          its member (1) and of its group (2), one byte each; how often the take is repeated (16 bit; 1 if its
--          group has other takes); then the hits (64 bit), the limit (32 bit), p1 to p3 (64 bit)
-- Reply    after the time, for each key: the length of the state that was read (32 bit), and that state. One more byte
--          follows if memory is full and nothing was written; refused takes are refused all the same.
--
-- backend.Settle defines what is admitted; this does the same, take by take.

local TAKE, SIZE = '<I2BBBBI2i8I4I8I8I8', 44

local values = redis.call('MGET', unpack(KEYS, 1, min(#KEYS, 1000)))
for first = 1001, #KEYS, 1000 do -- a Lua call has room for some thousand arguments
  for i, v in ipairs(redis.call('MGET', unpack(KEYS, first, min(first + 999, #KEYS)))) do
    values[first + i - 1] = v
  end
end

local reply = { pack('<I8', now) }
local A, B, C = {}, {}, {}               -- the states, by key
local touched, P1, P2, P3 = {}, {}, {}, {} -- what is to be written, and with which parameters

local function add(k, shape, count_denied, times, hits, limit, p1, p2, p3)
  if hits == 0 then return end
  local a, b, c, changed = repeated(TRY[shape], times, count_denied, A[k], B[k], C[k], hits, limit, p1, p2, p3)
  if not changed then return end
  A[k], B[k], C[k] = a, b, c
  touched[k], P1[k], P2[k], P3[k] = shape, p1, p2, p3
end

-- The takes of the group that is being read, and what its members said so far.
local group, allowed, member_passed, refused, any_voted, any_passed = nil, {}, true, false, false, false

for at = 9, #packed, SIZE do
  local k, shape, count_denied, vote, last, times, hits, limit, p1, p2, p3 = unpack_from(TAKE, packed, at)
  if not A[k] then
    local seen
    A[k], B[k], C[k], seen = READ[shape](KEYS[k], values[k], p1, p2, p3, limit)
    reply[k + 1] = pack('<I4', #seen) .. seen
  end
  if last == 2 and not group then
    add(k, shape, count_denied, times, hits, limit, p1, p2, p3)
  else
    group = group or at
    local passed = TRY[shape](A[k], B[k], C[k], hits, limit, p1, p2, p3, true)
    allowed[at] = passed
    member_passed = member_passed and passed
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
      for i = group, at, SIZE do
        local k, shape, count_denied, _, _, _, hits, limit, p1, p2, p3 = unpack_from(TAKE, packed, i)
        if not refused or hits < 0 or (count_denied == 1 and not allowed[i]) then
          add(k, shape, count_denied, 1, hits, limit, p1, p2, p3)
        end
      end
      group, refused, any_voted, any_passed = nil, false, false, false
    end
  end
end

if again then return pack('<i8I4', -now, again) end
local written, err = pcall(function()
  for k = 1, #KEYS do
    local shape = touched[k]
    if shape then WRITE[shape](KEYS[k], values[k], A[k], B[k], C[k], P1[k], P2[k], P3[k]) end
  end
end)
if not written then
  if not full(err) then error(err, 0) end
  reply[#KEYS + 2] = '!'
end
return table.concat(reply)
