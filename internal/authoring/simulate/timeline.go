package simulate

// timeline counts over time in at most maxBuckets buckets of equal width. When they do not suffice any more, a larger
// width is used, and neighbouring buckets are added up. Time never goes back.
type timeline struct {
	begun   bool
	origin  int64 // the beginning of the first bucket, in microseconds since 1970; a multiple of the width
	step    int   // the index of the current width in widths
	last    int   // the bucket of the newest time
	columns [][]int64
}

const (
	maxBuckets = 360
	second     = 1_000_000 // microseconds
)

// widths are the possible widths of a bucket, in seconds; each is a multiple of the one before.
var widths = []int64{1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 604_800, 2_419_200, 31_449_600}

// width returns the width of a bucket in microseconds.
func (t *timeline) width() int64 { return widths[t.step] * second }

// column adds a column of counts.
func (t *timeline) column() int {
	t.columns = append(t.columns, nil)
	return len(t.columns) - 1
}

// advance moves on to a time.
func (t *timeline) advance(at int64) {
	if !t.begun {
		t.begun = true
		t.origin = at / t.width() * t.width()
	}
	for {
		if b := (at - t.origin) / t.width(); b < maxBuckets {
			t.last = int(b)
			return
		}
		t.widen()
	}
}

// add counts one in a column, at the current time.
func (t *timeline) add(column int) {
	c := t.columns[column]
	for len(c) <= t.last {
		c = append(c, 0)
	}
	c[t.last]++
	t.columns[column] = c
}

func (t *timeline) widen() {
	before, origin := t.width(), t.origin
	t.step++
	t.origin = origin / t.width() * t.width()
	for _, c := range t.columns {
		for i, n := range c {
			c[i] = 0
			c[(origin+int64(i)*before-t.origin)/t.width()] += n
		}
	}
	for j, c := range t.columns {
		if len(c) > 0 {
			end := int((origin+int64(len(c)-1)*before-t.origin)/t.width()) + 1
			t.columns[j] = c[:end]
		}
	}
}

// counts returns the counts of a column, one for every bucket up to the newest.
func (t *timeline) counts(column int) []int64 {
	if !t.begun {
		return nil
	}
	out := make([]int64, t.last+1)
	copy(out, t.columns[column])
	return out
}
