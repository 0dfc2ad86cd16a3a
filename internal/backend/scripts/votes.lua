-- Decides the takes that are packed between from and to. backend.Settle defines the outcomes; this part computes the same, take
-- by take.

-- The takes of the group that is being read, and the results of its members so far. member_passed is nil if no take of the member
-- that is being read votes any.
local group, allowed, member_passed, denied, any_voted, any_passed = nil, {}, nil, false, false, false

for at = from, to, SIZE do
  local k, shape, count_denied, vote, last, times, hits, limit, p1, p2, p3 = unpack_from(TAKE, packed, at)
  if not A[k] then
    local seen
    A[k], B[k], C[k], seen = READ[shape](KEYS[k], values[k], p1, p2, p3, limit)
    prepare(k, shape, times, limit, p1, p2, p3)
    reply[k + 1] = (#seen == 8 and EIGHT or pack('<I4', #seen)) .. seen
  end
  if last == 2 and not group then
    add(k, shape, count_denied, times, hits, limit, p1, p2, p3)
  else
    group = group or at
    prepare(k, shape, times, limit, p1, p2, p3)
    local passed = TRY[shape](A[k], B[k], C[k], hits, limit, p1, p2, p3, true) ~= false
    allowed[at] = passed
    if vote == 0 then
      denied = denied or not passed
    elseif vote == 1 then
      any_voted, member_passed = true, member_passed ~= false and passed
    end
    if last > 0 then any_passed, member_passed = any_passed or member_passed, nil end
    if last == 2 then
      denied = denied or (any_voted and not any_passed)
      local penalised = false
      for i = group, at, SIZE do
        local k, shape, count_denied, _, _, times, hits, limit, p1, p2, p3 = unpack_from(TAKE, packed, i)
        if count_denied == GUARDS then
          penalised = not allowed[i]
          punish(k, shape, i, allowed, times, p1)
        else
          if hits < 0 or (not penalised and (not denied or (count_denied == 1 and not allowed[i]))) then
            add(k, shape, count_denied, times, hits, limit, p1, p2, p3)
          else
            prepare(k, shape, times, limit, p1, p2, p3) -- an earlier take may have moved the state since
          end
          penalised = false
        end
      end
      group, denied, any_voted, any_passed = nil, false, false, false
    end
  end
end
