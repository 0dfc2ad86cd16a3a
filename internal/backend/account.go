package backend

import (
	"encoding/binary"

	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Account is what one region holds of a counter whose home is another region, as a replica has read it from a record. A take with an
// Account takes from that record, and its limit does not matter. It passes if nobody has written the record since, if the account is still
// valid, and if it has enough. So any number of replicas may take at once, and none of them may be wrong about what is there.
//
// The outcome of such a take has other meanings. Before and Used are what was taken since the record was written, before the take and
// after it; Before is OtherRecord if it was written since. ResetAfter is how long the account is still valid: negative if it is not.
type Account struct {
	Stamp int64 // of the record
	Left  int64 // hits that it had when it was written
	Until int64 // before which time they may be taken
}

// OtherRecord stands in Outcome.Before if the record is not the one that the caller has read.
const OtherRecord = -1

// AccountKind is the kind of the records that accounts are in.
const AccountKind = "account"

// settle attempts a take. The state is Stamp in Start, and what was taken since in Count.
func (a *Account) settle(s *State, now, hits int64, c commit) Outcome {
	if s.Start != a.Stamp {
		return Outcome{Before: OtherRecord}
	}
	o := Outcome{Allowed: now < a.Until && s.Count+hits <= a.Left, Before: s.Count, Used: s.Count, ResetAfter: micros(a.Until - now)}
	if c.adds(o.Allowed) {
		s.Count += hits
		o.Used = s.Count
	}
	return o
}

// AccountForm is how the record of an account is kept in Redis: by its first bytes.
var AccountForm = RedisForm{
	Shape: scripts.Account, Room: func(*descriptor.Limit, int) int { return RecordHead }, least: RecordHead,
	decode: func(seen []byte, _ *descriptor.Limit, _ int64, tail []uint32) (State, []uint32) {
		return HeadOf(seen), tail
	},
}

// HeadOf reads the first bytes of a record, as the state of a counter.
func HeadOf(record []byte) State {
	if len(record) < RecordHead {
		return State{}
	}
	return State{Start: int64(binary.LittleEndian.Uint64(record)), Count: int64(binary.LittleEndian.Uint64(record[8:]))}
}

// AppendHead begins a record.
func AppendHead(b []byte, stamp int64) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, uint64(stamp)), 0)
}
