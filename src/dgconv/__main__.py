"""python -m dgconv"""

from dgconv_command import main

if __name__ == "__main__":
    main()
