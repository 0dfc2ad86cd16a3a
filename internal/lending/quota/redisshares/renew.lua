-- Renews a replica' share of one limit.
-- KEYS: a hash with a field for each replica that holds a share, and one for the saved tokens.
-- ARGV: the question as JSON: quota.Ask with Process, the name of this replica, and TTL, the time until its share expires. Times are in ns.
-- Answers with rate, burst, tokens to mint, fair rate, fair burst, claimed rate, claimed burst, 1 if more may be claimed later, and the number of
-- replicas.
--
-- The rates of all shares never exceed the rate of the limit. The bursts of all shares plus the saved tokens never exceed the burst of the
-- limit. Tokens are saved at the rate that no replica holds.
local key, ask = KEYS[1], cjson.decode(ARGV[1])
local me, rate, burst, known, ttl = ask.Replica, ask.Rate, ask.Burst, ask.Held, math.floor(ask.TTL / 1e6)
-- How many ms after its last renewal a replica counts as gone. It must be long enough for all clients of the replica to reach other
-- replicas: before that, the claim of one client could take what another client still holds. If a replica says that it ends, its
-- clients need less time (moving), because Envoys look for another replica every 5 s.
local silent, moving = 12000, 7000
local reserve, floor = 0.125, 0.25
local spare = 0.02 -- of the rate: no replica gets this part, so that tokens are saved

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Twelve numbers are stored for each replica: rate, burst, demand, time of the last renewal, and time of the expiry; the claimed rate and
-- burst in its last answer, the number of the question that this answer belongs to, the rate that it still claims, the rate and the burst
-- that were taken for its claims since that answer, and the time when its first claim came.
-- The demand of a replica that has ended is -1. A field without twelve numbers is not ours.
local all, names, total_rate, total_burst = {}, {}, 0, 0
local saved, since, learning = nil, now, 0
local stored = redis.call('HGETALL', key)
for i = 1, #stored, 2 do
  local n = {}
  for part in string.gmatch(stored[i + 1], '[^ ]+') do n[#n + 1] = tonumber(part) end
  if stored[i] == '' then
    saved, since, learning = n[1], n[2], n[3]
  elseif #n == 12 then
    all[stored[i]] = {rate = n[1], burst = n[2], demand = n[3], renewed = n[4], expires = n[5],
      claimed_rate = n[6], claimed_burst = n[7], number = n[8], claim = n[9], more_rate = n[10], more_burst = n[11], since = n[12]}
  end
end
local function over(p) return p.expires <= now or p.renewed > now + ttl end

-- A packet of a question can arrive after the replica has given up and asked again on another connection. What the replica held then is not
-- what it holds now, so nothing must change.
if all[me] and not over(all[me]) and ask.Number < all[me].number then
  return redis.error_reply('STALE question: Redis has answered a later one')
end

if saved == nil then
  saved = math.min(ask.Saved, burst)
  if known then -- the data is lost: others may hold shares, too
    saved, learning = 0, now + silent
  end
end
if since > now then since = now end -- the clock was set back
learning = math.min(learning, now + silent) -- likewise

-- The rate that no replica held since the last call became saved tokens. Shares that have expired are free from now on.
local before = 0
for name, p in pairs(all) do before = before + p.rate end
saved = saved + math.max(rate - before, 0) * (now - since) / 1000
for name, p in pairs(all) do
  if over(p) then
    all[name] = nil
    redis.call('HDEL', key, name)
  end
end

local own = all[me] or {rate = 0, burst = 0, claimed_rate = 0, claimed_burst = 0, number = 0, more_rate = 0, more_burst = 0}
if not all[me] and known then learning = math.max(learning, now + silent) end
own.demand, own.renewed, own.expires = ask.Demand, now, now + ttl
if ask.Ends then own.demand = -1 end
-- What was taken for claims of this replica counts as held until it has an answer that says so.
if own.number <= ask.Answered then own.claimed_rate, own.claimed_burst = 0, 0 end
own.claimed_rate, own.claimed_burst = own.claimed_rate + own.more_rate, own.claimed_burst + own.more_burst
own.more_rate, own.more_burst, own.number = 0, 0, ask.Number
own.claim, own.since = math.max(ask.ClaimRate - own.claimed_rate, 0), now - math.floor(ask.ClaimAge / 1e6)

-- A replica cannot keep more than it was given. If that was forgotten, or has expired while the question was under way, others may
-- have got it, and the replica keeps what is left.
local others_burst = 0
for name, p in pairs(all) do
  if name ~= me then others_burst = others_burst + p.burst end
end
local kept = math.min(ask.HeldBurst + own.claimed_burst, math.max(own.burst, known and burst - others_burst or 0))
saved = saved + math.min(ask.Returned, math.max(own.burst - kept, 0))
own.burst = kept
all[me] = own

local function store(name)
  local p = all[name]
  redis.call('HSET', key, name, string.format('%.17g %.17g %.17g %d %d %.17g %.17g %d %.17g %.17g %.17g %d', p.rate, p.burst, p.demand, p.renewed, p.expires,
    p.claimed_rate, p.claimed_burst, p.number, p.claim, p.more_rate, p.more_burst, p.since))
end

-- Clients of replicas that are gone bring along what these gave them: their rate, and its part of the tokens. By now all of them have come to
-- others. A client may have used more than its rate, out of its tokens. If its claim were served first, too little would be left for the others,
-- which still use what they hold. So all claims are served together, each in proportion.
local live, gone = {}, {}
for name, p in pairs(all) do
  if name == me or p.demand >= 0 and p.renewed > now - silent then
    live[#live + 1] = name
  elseif p.rate > 0 and p.renewed <= now - (p.demand < 0 and moving or silent) then
    gone[#gone + 1] = name
  end
end
for _, name in ipairs(gone) do
  local p, claims = all[name], 0
  local function served(q) return q.claim > 0 and q.since >= p.renewed end -- else its clients came before the replica was gone
  for _, n in ipairs(live) do
    if served(all[n]) then claims = claims + all[n].claim end
  end
  if claims > 0 then
    local r = math.min(claims, p.rate)
    local b = p.burst * r / p.rate
    for _, n in ipairs(live) do
      local q = all[n]
      if served(q) then
        local part = q.claim / claims
        if n == me then
          q.claimed_rate, q.claimed_burst, q.burst = q.claimed_rate + r * part, q.claimed_burst + b * part, q.burst + b * part
        else
          q.more_rate, q.more_burst = q.more_rate + r * part, q.more_burst + b * part
          q.rate, q.burst = q.rate + r * part, q.burst + b * part
        end
        q.claim = math.max(q.claim - r * part, 0)
        if n ~= me then store(n) end
      end
    end
    p.rate, p.burst = p.rate - r, p.burst - b
    store(name)
  end
end
table.sort(live)

local claimable = 0 -- a replica that is not known to be alive since the claims came
for name, p in pairs(all) do
  if name ~= me and p.rate > rate * 1e-9 and p.renewed <= own.since then claimable = 1 end
  if name ~= me then total_rate, total_burst = total_rate + p.rate, total_burst + p.burst end
end
-- The saved tokens are remembered until they would be all there are.
local function remember()
  redis.call('HSET', key, '', string.format('%.17g %d %d', saved, now, learning))
  local full = rate > 0 and (burst - saved) / rate * 1000 or ttl
  redis.call('PEXPIRE', key, math.ceil(math.max(ttl, math.min(full, 86400000))))
end
local function text(n) return string.format('%.17g', n) end

saved = math.max(math.min(saved, burst - total_burst - own.burst), 0)
local kept_rate = math.min(math.max(ask.HeldRate, 0), math.max(own.rate, rate - total_rate)) + own.claimed_rate -- like the burst
if ask.Ends then
  own.rate = kept_rate
  store(me)
  remember()
  return {text(own.rate), text(own.burst), '0', '0', '0', '0', '0', 0, #live}
end

-- The fair rates: what each wants, but no more than an equal level if there is not enough; what is left is shared equally.
local wants, fair, left, open = {}, {}, rate * (1 - spare), #live
for _, name in ipairs(live) do
  wants[name] = math.max(1.03 * all[name].demand, rate * floor / #live * (all[name].demand > 0 and 1 or 0.1))
end
while open > 0 do
  local level, before = left / open, open
  for _, name in ipairs(live) do
    if not fair[name] and wants[name] <= level then
      fair[name], left, open = wants[name], left - wants[name], open - 1
    end
  end
  if open == before then
    for _, name in ipairs(live) do
      if not fair[name] then fair[name], left = level, left - level end
    end
    open = 0
  end
end
for _, name in ipairs(live) do fair[name] = fair[name] + math.max(left, 0) / #live end

-- The fair bursts: a token for each, the rest by rate. If there are too few, replicas without demand get none. If there
-- are still too few, the replicas with demand take turns.
local whole = math.floor(burst)
local fair_burst = 0
local asking = {}
for _, name in ipairs(live) do
  if all[name].demand > 0 then asking[#asking + 1] = name end
end
if #asking == 0 then asking = live end
if whole >= #live then
  fair_burst = 1 + (burst - #live) * fair[me] / rate
elseif ask.Demand > 0 or asking == live then
  if whole >= #asking then
    fair_burst = whole / #asking
  else
    local turn = math.max(60000, 20000 / rate) -- to hand over takes some 15 s
    local start = math.floor(now / turn) * whole
    for i, name in ipairs(asking) do
      if name == me and (i - 1 - start) % #asking < whole then fair_burst = 1 end
    end
  end
end

local most = learning > now and 0 or fair[me]
local mint = math.min(math.max(fair_burst - own.burst, 0), saved)
if own.burst >= 1 then mint = math.min(mint, math.max(saved - math.floor(burst * reserve), 0)) end
if own.burst + mint < 1 or learning > now then mint = 0 end
saved, own.burst = saved - mint, own.burst + mint

own.rate = kept_rate
if own.burst >= 1 then -- without a token the rate is of no use: no replica gets it then, and tokens are saved
  own.rate = math.max(own.rate, math.min(most, rate - total_rate))
end

-- A replica that holds nothing stays: if its field is gone when it comes again, data is lost.
store(me)
remember()
return {text(own.rate), text(own.burst), text(mint), text(fair[me]), text(fair_burst), text(own.claimed_rate), text(own.claimed_burst), claimable, #live}
