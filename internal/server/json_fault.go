package server

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// placeInJSON is how the errors of protojson begin. The space after the colon differs from build to build.
var placeInJSON = regexp.MustCompile(`^(?:proto:[ \x{a0}])?(?:syntax error )?(?:\(line (\d+):(\d+)\): )?`)

// faultOf says why protojson has rejected a body, beginning with the place.
func faultOf(body []byte, message protoreflect.MessageDescriptor, err error) string {
	if len(bytes.TrimSpace(body)) == 0 {
		return fmt.Sprintf("the body is empty: send a %s as JSON", message.Name())
	}
	text := strings.ToValidUTF8(err.Error(), "?")
	at := placeInJSON.FindStringSubmatch(text)
	what := text[len(at[0]):]
	if what == "unexpected EOF" {
		return "the JSON ends too early: close what is open"
	}
	const most = 100 // the end is what the client wrote
	if len(what) > most {
		what = strings.ToValidUTF8(what[:most], "") + "..."
	}
	if at[1] == "" {
		return what
	}
	return fmt.Sprintf("line %s, column %s: %s", at[1], at[2], what)
}
