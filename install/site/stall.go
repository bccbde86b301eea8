package site

import (
	"fmt"

	"github.com/liteboxd/boxlift/internal/printable"
)

// Note tells the operator at once what is not well and stops nothing.
func (s *Site) Note(format string, args ...any) {
	s.Reporter.Message("warning: " + printable.Text(fmt.Sprintf(format, args...)))
}
