"""Names that a function in a C program may not have: keywords, those of the C library, and those around it."""

from __future__ import annotations

import re

# Up to C23 and with GNU's; then the two macros of GNU C for Linux, and the program's own function.
_KEYWORDS = """
    auto break case char const continue default do double else enum extern float for goto if inline int long
    register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
    alignas alignof asm bool constexpr false nullptr static_assert thread_local true typeof typeof_unqual linux unix
    main
"""

_MATH = """
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 exp10 expm1 fabs fdim floor
    fma fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf nan
    nearbyint nextafter nexttoward pow remainder remquo rint round scalbln scalbn sin sincos sinh sqrt tan tanh
    tgamma trunc gamma drem significand pow10 scalb finite j0 j1 jn y0 y1 yn cabs cacos cacosh carg casin casinh
    catan catanh ccos ccosh cexp cimag clog conj cpow cproj creal csin csinh csqrt ctan ctanh
"""

_LIBRARY = """
    fpclassify isfinite isinf isnan isnormal signbit signgam isgreater isless isunordered clearerr fclose feof
    ferror fflush fgetc fgetpos fgets fopen fprintf fputc fputs fread freopen fscanf fseek fsetpos ftell fwrite getc
    getchar gets perror printf putc putchar puts remove rename rewind scanf setbuf setvbuf snprintf sprintf sscanf
    stderr stdin stdout tmpfile tmpnam ungetc vfprintf vfscanf vprintf vscanf vsnprintf vsprintf vsscanf abort abs
    atexit atof atoi atol atoll bsearch calloc div exit free getenv labs ldiv llabs lldiv malloc mblen mbstowcs
    mbtowc qsort rand realloc srand strtod strtof strtol strtold strtoll strtoul strtoull system wcstombs wctomb
    memchr memcmp memcpy memmove memset strcat strchr strcmp strcoll strcpy strcspn strerror strlen strncat strncmp
    strncpy strpbrk strrchr strspn strstr strtok strxfrm asctime clock ctime difftime gmtime localtime mktime
    strftime time isalnum isalpha isascii isblank iscntrl isdigit isgraph islower isprint ispunct isspace isupper
    isxdigit toascii tolower toupper longjmp setjmp raise signal localeconv setlocale errno assert
"""

# Declared by default settings, or called by the library itself: defined anew, they break it without a word.
_POSIX = """
    accept access alarm alloca basename bcmp bcopy bind brk bzero chdir chmod chown close connect creat daemon
    dirname dprintf dup dup2 environ execl execle execlp execv execve execvp ffs fileno fork fstat getcwd getdelim
    getline getpid index ioctl kill link listen lseek lstat memccpy mkdir mmap munmap nice open optarg optind pause
    pclose pipe poll popen pread putenv pwrite random read readlink readv recv rindex rmdir sbrk select send setenv
    shutdown sleep socket srandom stat stpcpy strcasecmp strdup strndup strnlen strsep symlink sync syscall times
    timezone truncate ttyname tzname umask uname unlink unsetenv usleep utime vfork wait waitpid write writev
"""

RESERVED = frozenset(
    [
        *f"{_KEYWORDS} {_LIBRARY} {_POSIX}".split(),
        *(name + suffix for name in _MATH.split() for suffix in ("", "f", "l")),
    ]
)
"""Keywords, and functions and variables of the C library."""


def function_name(words: str, *sources: str) -> str:
    """What to call a function after `words`, so that it meets no other name in the program and in C `sources`."""
    plain = re.sub(r"\W", "_", words, flags=re.ASCII)
    taken = RESERVED.union(*map(_names_in, sources))
    return plain if re.match(r"[a-zA-Z]", plain) and plain not in taken else f"net_{plain}"


def _names_in(source: str) -> set[str]:
    """Every name in the code of a C file, its comments left out."""
    return set(re.findall(r"\b[A-Za-z_]\w*", re.sub(r"/\*.*?\*/", " ", source, flags=re.DOTALL)))
