package ruletest

import (
	"strconv"
	"time"
)

// Report is the result of a run.
type Report struct {
	Files    []FileResult  `json:"files"`
	Cases    int           `json:"cases"` // number of cases run
	Failed   int           `json:"failed"`
	Bad      int           `json:"bad_files"` // number of files that could not be run
	Requests int           `json:"requests"`
	Coverage *Coverage     `json:"coverage"`
	Elapsed  time.Duration `json:"-"`
}

// FileResult is the result of one test file.
type FileResult struct {
	Name    string        `json:"file"`
	Rules   []string      `json:"rules,omitempty"`  // the rule files that it tests
	Errors  []FileError   `json:"errors,omitempty"` // why it could not be run; then there are no cases
	Cases   []CaseResult  `json:"cases,omitempty"`
	Elapsed time.Duration `json:"-"`
}

// FileError is one error in a test file or in a rule file.
type FileError struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"` // 0 if the file as a whole is at fault
	Col     int    `json:"col,omitempty"`
	Message string `json:"message"`
}

func (e *FileError) String() string {
	if e.Line == 0 {
		return e.File + ": " + e.Message
	}
	return e.File + ":" + strconv.Itoa(e.Line) + ":" + strconv.Itoa(e.Col) + ": " + e.Message
}

// CaseResult is the result of one case.
type CaseResult struct {
	Name     string        `json:"name"`
	Line     int           `json:"line"`
	Col      int           `json:"col"`
	Steps    int           `json:"steps"`
	Requests int           `json:"requests"`
	Failures []Failure     `json:"failures,omitempty"` // empty if the case passed
	Elapsed  time.Duration `json:"-"`
}

// Failure is a request that was not answered as expected.
type Failure struct {
	Line int `json:"line"` // line of the first failed expectation
	Col  int `json:"col"`

	Step     int       `json:"step"` // number of the step, from 1
	Steps    int       `json:"steps"`
	Request  int       `json:"request"` // number among the repeated requests, from 1
	Requests int       `json:"requests"`
	Offset   string    `json:"offset"` // time since the case's start
	Time     time.Time `json:"time"`
	Asked    []string  `json:"asked"` // descriptors and their hits in the request

	Problem     string       `json:"problem,omitempty"` // why there was no answer
	Differences []Difference `json:"differences,omitempty"`
	State       []State      `json:"state,omitempty"` // counters by descriptor
}

// Difference is an expectation that was not met.
type Difference struct {
	Line int    `json:"line"`
	Col  int    `json:"col"`
	What string `json:"what"`
	Want string `json:"expected"`
	Got  string `json:"got"`
}

// State is the engine's answer to a descriptor.
type State struct {
	Code      string `json:"code"`
	Rule      string `json:"rule"`               // its path, "request_limit" or "none"
	Replaced  string `json:"replaced,omitempty"` // the path of the rule that would apply, were it not replaced
	File      string `json:"file,omitempty"`     // file of the rule
	Line      int    `json:"line,omitempty"`
	Col       int    `json:"col,omitempty"`
	Shadow    bool   `json:"shadow_mode,omitempty"`
	Unlimited bool   `json:"unlimited,omitempty"`

	Overridden bool `json:"overridden,omitempty"` // the numbers come from an override

	Limit     string `json:"limit,omitempty"` // "5 per day"; empty if none applied
	Name      string `json:"name,omitempty"`  // name of the limit
	Remaining uint64 `json:"remaining"`
	Reset     string `json:"reset,omitempty"`
	Wait      string `json:"wait,omitempty"`
	Delay     string `json:"delay,omitempty"`
}

// Passed reports whether all files could be run and all their cases passed.
func (r *Report) Passed() bool { return r.Failed == 0 && r.Bad == 0 }

func (r *Report) sum() {
	for i := range r.Files {
		f := &r.Files[i]
		if len(f.Errors) > 0 {
			r.Bad++
		}
		for j := range f.Cases {
			r.Cases++
			r.Requests += f.Cases[j].Requests
			if len(f.Cases[j].Failures) > 0 {
				r.Failed++
			}
		}
	}
}
