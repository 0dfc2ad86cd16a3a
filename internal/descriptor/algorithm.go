package descriptor

import (
	"fmt"
	"strconv"
)

// Algorithm is the way in which a limit is enforced.
type Algorithm uint8

// The algorithms. docs/understand/algorithms.md describes when to use which.
const (
	FixedWindow Algorithm = iota
	SlidingWindow
	SlidingLog
	TokenBucket
	LeakyBucket
	Concurrency

	// Penalties is the algorithm of Limit.Penalty. No rule can choose it.
	Penalties

	// SharedWindow is the algorithm of a FixedWindow with Limit.Classes. A rule chooses it with its classes.
	SharedWindow
)

// Setting is a setting of a limit that only some algorithms have.
type Setting uint16

// The settings.
const (
	SettingBurst       Setting = 1 << iota // Limit.Burst
	SettingRefill                          // Limit.Interval
	SettingAlign                           // Limit.FirstHit
	SettingCalendar                        // Limit.Window.Location
	SettingPrecision                       // Limit.Precision
	SettingNoDelay                         // Limit.NoDelay
	SettingCountDenied                     // Limit.CountDenied
	SettingClasses                         // Limit.Classes
	SettingInFlight                        // Limit.Requests are places, and Limit.Window is how long one may be held
)

// algorithm holds the properties that all limits of one algorithm have in common. Package backend has a file per
// algorithm that counts the hits.
type algorithm struct {
	name     string // name in rule files
	settings Setting
	windows  windows
	letter   byte   // identifies the algorithm in the keys of counters
	interval byte   // the same for a limit whose Interval is set
	more     uint64 // hits that a bucket holds in addition to Burst

	// fills in the arithmetic for a window of length microseconds; nil if there is nothing to fill in
	compile func(l *Limit, length int64) error
	words   func(l *Limit) string // describes its settings for people; nil if there is nothing to describe

	countsDenied bool // denied hits count, unless the limit has another setting
}

// windows describes how an algorithm drops old hits.
type windows uint8

const (
	noWindows      windows = iota // hits drop out one after the other: a bucket, or places
	endingWindows                 // all hits of a window drop out at its end, which later hits do not move
	slidingWindows                // hits drop out as they leave the window, which ends now
)

// algorithms has a row for each constant.
var algorithms = [...]algorithm{
	FixedWindow: {
		// same behaviour as envoyproxy/ratelimit
		name: "fixed_window", settings: SettingAlign | SettingCalendar | SettingCountDenied | SettingClasses, letter: 'f',
		windows: endingWindows, countsDenied: true,
		words: func(l *Limit) string { return fromFirstHit(l) },
	},
	SlidingWindow: {
		name: "sliding_window", settings: SettingPrecision, letter: 's', windows: slidingWindows,
		compile: (*Limit).compileSlidingWindow,
		words: func(l *Limit) string {
			if l.Precision > 1 {
				return fmt.Sprintf(", precision %d", l.Precision)
			}
			return ""
		},
	},
	SlidingLog: {
		name: "sliding_log", settings: SettingCountDenied, letter: 'l', windows: slidingWindows,
		compile: (*Limit).compileSlidingLog,
	},
	TokenBucket: {
		name: "token_bucket", settings: SettingBurst | SettingRefill | SettingAlign, letter: 't', interval: 'i',
		compile: (*Limit).compileTokenBucket,
		words: func(l *Limit) string {
			if l.Interval {
				return fmt.Sprintf(", burst %d, refilled at intervals%s", l.Burst, fromFirstHit(l))
			}
			return fmt.Sprintf(", burst %d", l.Burst)
		},
	},
	LeakyBucket: {
		// one hit is served while Burst hits wait
		name: "leaky_bucket", settings: SettingBurst | SettingNoDelay, letter: 'q', more: 1,
		compile: (*Limit).compileLeakyBucket,
		words:   func(l *Limit) string { return fmt.Sprintf(", %d may wait", l.Burst) + withoutDelay(l) },
	},
	Concurrency: {
		name: "concurrency", settings: SettingInFlight, letter: 'c',
		compile: (*Limit).compileConcurrency,
	},
	Penalties: {name: "penalty"},
	SharedWindow: {
		name: "fixed_window", settings: SettingCalendar | SettingClasses, letter: 'k', windows: endingWindows,
		compile: (*Limit).compileSharedWindow,
		words:   func(*Limit) string { return " shared by classes" },
	},
}

// AlgorithmNames are the names in rule files, in the order of the constants.
var AlgorithmNames = func() (names []string) {
	for i := range algorithms[:Penalties] {
		names = append(names, algorithms[i].name)
	}
	return names
}()

func (a Algorithm) String() string {
	if int(a) < len(algorithms) {
		return algorithms[a].name
	}
	return "algorithm(" + strconv.Itoa(int(a)) + ")"
}

// Has reports whether a setting has an effect on a limit. SettingAlign has no effect on a bucket that is refilled
// continuously.
func (l *Limit) Has(s Setting) bool {
	a := &algorithms[l.Algorithm]
	if s == SettingAlign && a.settings&SettingRefill != 0 && !l.Interval {
		return false
	}
	return a.settings&s != 0
}

// Windowed reports whether a limit is a number of hits per window, and not a bucket or a number of places.
func (l *Limit) Windowed() bool { return algorithms[l.Algorithm].windows != noWindows }

// WindowEnds reports whether all hits in use are forgotten at one time, which later hits do not move.
func (l *Limit) WindowEnds() bool { return algorithms[l.Algorithm].windows == endingWindows }

// Slides reports whether the window of a limit ends now, at any time.
func (l *Limit) Slides() bool { return algorithms[l.Algorithm].windows == slidingWindows }

// CountsDenied reports whether denied hits count in the request of a descriptor that counts for itself.
func (l *Limit) CountsDenied() bool {
	if l.CountDenied == DeniedDefault {
		return algorithms[l.Algorithm].countsDenied
	}
	return l.CountDenied == DeniedCount
}

// Compiled reports whether a limit is ready to be counted: Compile has been called, or has nothing to do for it.
func (l *Limit) Compiled() bool {
	return l.Arithmetic.Length != 0 || algorithms[l.Algorithm].compile == nil
}
