-- Many takes, of one or many requests: every counter is read once, changed in these tables, and written once.
--
-- ARGV[1]  after the time, for each take: the index of its key (16 bit), the letter of its algorithm's part, whether
--          denied hits count (0, 1), or that the take is on the penalty of the next take's limit (3); its vote (0 all, 1 any,
--          2 none), whether it is the last take of
--          its member (1) and of its group (2), one byte each; how often the take is repeated (16 bit; 1 if its
--          group has other takes, 0 if this only reads); then the hits, the limit, p1 to p3 (64 bit each)
-- Reply    after the time, for each key: the length of the state that was read (32 bit), and that state. One more byte
--          follows if memory is full and nothing was written; denied takes are still denied.
--
-- values.lua reads the counters before this part. votes.lua decides, and written.lua writes.

local GUARDS = 3
local TAKE, SIZE = '<I2BBBBI2i8I8I8I8I8', 48

local A, B, C = {}, {}, {}               -- the states, by key
local touched, P1, P2, P3 = {}, {}, {}, {} -- counters to write, and their parameters

-- Moves a state that lies too far ahead for a take, or was written under another limit.
local function prepare(k, shape, times, limit, p1, p2, p3)
  if NEARER[shape] and not moved then
    A[k], B[k], C[k], moved = NEARER[shape](A[k], B[k], C[k], limit, p1, p2, p3)
  end
  if moved and times > 0 then
    touched[k], P1[k], P2[k], P3[k], moved = shape, p1, p2, p3, nil
  end
end

-- Starts a penalty if the take that follows it is denied by its limit, and no penalty is active.
local function punish(k, shape, at, allowed, times, p1)
  prepare(k, shape, times, 0, p1, 0, 0)
  local hits = unpack_from('<i8', packed, at + SIZE + 8)
  if allowed[at + SIZE] or hits <= 0 or A[k] > 0 then return end
  A[k] = now + p1
  touched[k], P1[k], P2[k], P3[k] = shape, p1, 0, 0
end

local function add(k, shape, count_denied, times, hits, limit, p1, p2, p3)
  prepare(k, shape, times, limit, p1, p2, p3)
  if hits == 0 then return end
  local a, b, c, changed = repeated(TRY[shape], times, count_denied, A[k], B[k], C[k], hits, limit, p1, p2, p3)
  if not changed then return end
  A[k], B[k], C[k] = a, b, c
  touched[k], P1[k], P2[k], P3[k] = shape, p1, p2, p3
end
